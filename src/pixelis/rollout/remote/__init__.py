"""A policy behind a server that speaks the OpenAI chat protocol."""
