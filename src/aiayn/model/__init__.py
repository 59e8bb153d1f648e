"""The model of section 3: mask, attention, feed_forward, position, norm -> encoder, decoder -> transformer."""
