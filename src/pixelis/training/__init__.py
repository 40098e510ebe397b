"""The three phases. They meet only through files: a corpus, a checkpoint, a run folder."""
