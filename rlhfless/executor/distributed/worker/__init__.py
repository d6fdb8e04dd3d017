"""The process of one actor: receives orders, decodes and sends reports."""
