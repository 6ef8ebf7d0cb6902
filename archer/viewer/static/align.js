// Lines up two steps, or two runs, by what they were asked: groups with the same prompt stand beside each other.

function byPrompt(head) {
  const found = new Map();
  for (const { group, prompt_key: key } of head.groups) if (key !== null && !found.has(key)) found.set(key, group);
  return found;
}

// [{prompt, told, a, b}]: the prompts that both sides answered, with their groups, in the order of the first side.
export function sharedPrompts(headA, headB) {
  const there = byPrompt(headB);
  return Array.from(byPrompt(headA))
    .filter(([key]) => there.has(key))
    .map(([key, a]) => {
      const { prompt, told } = headA.groups.find(({ group }) => group === a);
      return { prompt, told, a, b: there.get(key) };
    });
}

// The group of `to` that has the prompt of a group of `from`; null where there is none.
export function partner(from, group, to) {
  const key = from.groups.find((entry) => entry.group === group)?.prompt_key ?? null;
  return key === null ? null : (byPrompt(to).get(key) ?? null);
}

// The two groups to show: what was chosen, else the chosen one's partner, else the first prompt in common.
export function alignedGroups(headA, wantedA, headB, wantedB) {
  const known = (head, group) => (head.groups.some((entry) => entry.group === group) ? group : null);
  const [a, b] = [known(headA, wantedA), known(headB, wantedB)];
  const firstOf = (head) => head.groups[0].group;
  if (a !== null && b !== null) return [a, b];
  if (a !== null) return [a, partner(headA, a, headB) ?? firstOf(headB)];
  if (b !== null) return [partner(headB, b, headA) ?? firstOf(headA), b];
  const [pair] = sharedPrompts(headA, headB);
  return pair ? [pair.a, pair.b] : [firstOf(headA), firstOf(headB)];
}
