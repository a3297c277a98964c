"""What blocks cost in chips: cells by synthesis, and clock rates by place and route."""
