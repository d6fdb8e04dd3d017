"""Record a training loop of your own: a recorder with a journal, and a callback for TRL."""
