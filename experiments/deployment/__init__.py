"""The same run behind a SuperLink: its apps, its server, and what a node holds."""
