"""The model of section 3: attention, feed_forward, norm -> layer; layer, position -> transformer."""
