"""Small inputs that ship with Seeker: the laptop preset's world and starting policy, and their makers."""
