"""Engines that decode an actor's responses behind one protocol: simulated, with torch or with vLLM."""
