"""The report on a selection: gathered from rows by the report role, drawn as one HTML file."""
