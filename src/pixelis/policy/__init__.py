"""The policy: one vision-language model over Hugging Face classes, from nano to 8B, and what it reads and writes."""
