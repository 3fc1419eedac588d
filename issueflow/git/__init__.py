"""Every git command that issueflow runs, and the only room that runs git."""
