"""What a reader sees: progress, tables, sentences, pictures, pages."""
