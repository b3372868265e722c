"""Statistics of evaluation, pure: values in, values out; null where something is undefined."""
