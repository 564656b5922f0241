"""YAML and overrides become frozen objects; nothing outside this package sees YAML or OmegaConf."""
