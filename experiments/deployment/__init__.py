"""The same run with clients at the nodes of a SuperLink: its apps, its server, a node, a warm start."""
