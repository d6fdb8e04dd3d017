"""An engine that decodes nothing and takes the seconds of a latency model."""
