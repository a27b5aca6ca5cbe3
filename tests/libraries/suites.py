NAMES = []
def run(name): pass
