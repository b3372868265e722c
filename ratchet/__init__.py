"""What two or more subsystems share: settings, errors, identities, rows, artefacts, telemetry.

This package imports no subsystem, and none of torch, transformers, deepspeed, vllm, fastapi, celery.
"""
