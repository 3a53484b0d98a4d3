"""The server: its settings, tasks, answers, receipts and checkpoints. csrc/engine executes the server's operations."""
