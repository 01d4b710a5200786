"""Draft: what needs torch. The only room that may import it."""
