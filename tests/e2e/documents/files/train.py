# Stands for the reader's script on pages that name one and do not show it.
print("loss 0.25", flush=True)
