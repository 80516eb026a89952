"""Images: what sandboxes see as their root. Made from a registry or from this machine's own packages."""
