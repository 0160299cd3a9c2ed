"""Audit: does a model see what it must not, and what is there to know about data before a figure on it is believed?"""
