"""What Flame instantiates on a node; it needs the standard library and flamepy (whose pyarrow it uses), no more.

The sources of this package travel inside the session as text and run under another name, on whatever Python the node
has (3.10 or later): so its modules import each other relatively, and nothing of Seeker but `archive`.
"""
