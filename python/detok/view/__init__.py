"""Terminal pictures of decoding."""
