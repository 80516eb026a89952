"""What has to be done to one list of lines to get another."""


def common(old, new):
    """Pairs of places of a longest common subsequence, in order."""
    lengths = [[0] * (len(new) + 1) for _ in range(len(old) + 1)]
    for i in range(len(old) - 1, -1, -1):
        for j in range(len(new) - 1, -1, -1):
            if old[i] == new[j]:
                lengths[i][j] = lengths[i + 1][j + 1] + 1
            else:
                lengths[i][j] = max(lengths[i + 1][j], lengths[i][j + 1])
    pairs = []
    i = j = 0
    while i < len(old) and j < len(new):
        if old[i] == new[j]:
            pairs.append((i, j))
            i += 1
            j += 1
        elif lengths[i + 1][j] >= lengths[i][j + 1]:
            i += 1
        else:
            j += 1
    return pairs


def diff(old, new):
    """Steps (mark, line): " " kept, "-" taken out, "+" put in; what is taken out stands before what is put in."""
    steps = []
    i = j = 0
    for a, b in [*common(old, new), (len(old), len(new))]:
        steps += [("-", line) for line in old[i:a]]
        steps += [("+", line) for line in new[j:b]]
        if a < len(old):
            steps.append((" ", old[a]))
        i, j = a + 1, b + 1
    return steps


def ratio(old, new):
    """How alike two lists are: 1 for equal ones, 0 for nothing in common."""
    total = len(old) + len(new)
    if total == 0:
        return 1.0
    return 2 * len(common(old, new)) / total


def unified(old, new, context=3):
    """Hunks of a unified diff as lines; none for equal lists."""
    steps = diff(old, new)
    changed = [at for at, (mark, _) in enumerate(steps) if mark != " "]
    groups = []
    for at in changed:
        if groups and at - groups[-1][1] <= 2 * context + 1:
            groups[-1][1] = at
        else:
            groups.append([at, at])
    lines = []
    for first, last in groups:
        start = max(0, first - context)
        end = min(len(steps), last + context + 1)
        inside = steps[start:end]
        old_before = sum(mark != "+" for mark, _ in steps[:start])
        new_before = sum(mark != "-" for mark, _ in steps[:start])
        old_count = sum(mark != "+" for mark, _ in inside)
        new_count = sum(mark != "-" for mark, _ in inside)
        lines.append(f"@@ -{_range(old_before, old_count)} +{_range(new_before, new_count)} @@")
        lines += [mark + line for mark, line in inside]
    return lines


def _range(before, count):
    """Where a hunk is. An empty one is named by the line before it."""
    start = before + 1 if count else before
    return f"{start}" if count == 1 else f"{start},{count}"
