import sys

print("step: run_with_helper.py")
sys.exit("no torch here")
