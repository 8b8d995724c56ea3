"""flash_attn.layers, of which rotary is here."""
