"""What a model is trained for, and how it is judged: the split, what is asked, metrics, floors."""
