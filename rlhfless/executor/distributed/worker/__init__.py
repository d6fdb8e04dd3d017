"""What runs inside an actor's process: orders in, reports out."""
