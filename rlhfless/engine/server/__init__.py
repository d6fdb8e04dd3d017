"""An engine that decodes on an OpenAI-compatible server, such as ``vllm serve``, one server per actor."""
