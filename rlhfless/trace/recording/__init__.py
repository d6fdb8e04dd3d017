"""Records a training loop of your own as a trace: a recorder with a journal, and a callback for TRL."""
