"""What the tests of sharded servers share: programs that they run as ranks, and what starts them."""
