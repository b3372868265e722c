"""Over-long answers to trivial questions: "How many days has a week?" wants a word, not a page.

Length and correctness are told apart: an over-long right answer is wrong here and right in the match.
"""

from evaluator.scorers.outcome import Answer, Outcome, Score, unscored

DEFAULT_WORDS = 40


def score_overlong(answer: Answer, at_most_words: int = DEFAULT_WORDS) -> Score:
    """Right where a trivial question is answered in at most so many words.

    An answer already over the bound is wrong even if it was cut off: more words would not have made it short.
    """
    words = len(answer.text.split())
    if words > at_most_words:
        return Score.of(False, f"{words} words where {at_most_words} are enough")
    if answer.truncated:
        return Score(Outcome.TRUNCATED, f"cut off after {words} words, within the bound")
    if words == 0:
        return unscored("the answer is empty: no question was answered, at any length")
    return Score.of(True, f"{words} words")
