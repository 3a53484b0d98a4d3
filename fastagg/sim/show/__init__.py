"""The presentation of results: progress, tables, sentences, pictures and reports."""
