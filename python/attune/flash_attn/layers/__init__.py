"""flash_attn.layers, of which only rotary is implemented."""
