"""Make a store from any data, or append to one, in bounded memory."""
