"""An engine that decodes nothing and takes the time that a latency model says."""
