-- Half as many threads as responses: two answers to one prompt each, over six months; on the first fifth of
-- the threads of each month a thumb down on the first answer and a thumb up on the second.
-- Parameters: %(threads)s
WITH thread AS (
    SELECT number, now() - interval '180 days' * (number::float8 / %(threads)s) AS asked,
           'question number ' || number || ' on what happens when '
               || repeat('water meets salt and light ', 8) AS prompt,
           'user ' || number %% 50000 AS person
    FROM generate_series(0, %(threads)s - 1) AS number
), answer AS (
    SELECT thread.*, turn, asked + turn * interval '20 seconds' AS made FROM thread, generate_series(0, 1) AS turn
)
INSERT INTO serving.response (
    id, created_at, kind, status, http_status, model, policy, pinned, decode, decode_overridden, arm, stage,
    stamp, key_id, user_id, conversation_id, history_hash, prompt_hash, messages, parameters_asked,
    parameters_used, output, outputs, finish_reason, stream, gateway, labels, verdicts, sanitized)
SELECT (lpad(to_hex((extract(epoch FROM made) * 1000)::bigint), 12, '0') || '7' || lpad(to_hex(turn), 3, '0')
            || '8' || lpad(to_hex(number), 15, '0'))::uuid,
       made, 'chat', 'ok', 200, 'sky', 'sky@' || CASE WHEN number %% 3 = 0 THEN 'aaaaaaaaaaaa' ELSE 'bbbbbbbbbbbb' END,
       false, repeat('d', 64), '[]', 'production', 'production', 'verified',
       '00000000-0000-0000-0000-000000000001', person, md5('conversation' || number), md5('history' || number),
       encode(sha256(convert_to(btrim(prompt), 'UTF8')), 'hex'),
       jsonb_build_array(jsonb_build_object('role', 'user', 'content', prompt)), '{}', '{}',
       'answer ' || turn || ' to ' || number || ': ' || repeat('the water takes the salt up, ', 12),
       jsonb_build_array(jsonb_build_object('index', 0, 'text', 'answer ' || turn || ' to ' || number || ': '
           || repeat('the water takes the salt up, ', 12))),
       'stop', true, 'benchmark', '{}', '{}', false
FROM answer;

INSERT INTO feedback.feedback_event (
    id, created_at, response_id, origin, key_id, kind, value, user_id, body_sha256, state)
SELECT id, created_at + interval '1 minute', id, 'client', key_id, 'thumb',
       CASE WHEN output LIKE 'answer 0%%' THEN -1 ELSE 1 END, user_id, '', 'joined'
FROM serving.response
WHERE ('x' || right(id::text, 8))::bit(32)::bigint %% 5 = 0;

ANALYZE serving.response;
ANALYZE feedback.feedback_event;
