"""What the chat's screen is made of. Widgets know messages, and neither app nor bridge."""
