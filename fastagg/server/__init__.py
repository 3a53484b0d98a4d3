"""The server: its settings, tasks, answers, receipts and checkpoints. csrc/engine takes the server's decisions."""
