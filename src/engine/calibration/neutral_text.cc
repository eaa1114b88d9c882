#include "engine/calibration/calibrate.h"

namespace kvant::engine {

std::string_view neutral_text() {
  return R"text(The harbour wakes before the town does. At five the first boats come back, low in the water, and the men on the quay
take the ropes without a word. Crates of mackerel go up the ramp, the scales are read aloud, and a girl with a pencil
behind her ear writes every weight into a long green book. By seven the fish are gone, the stones have been washed, and
only the gulls remember that anything happened.

"How deep is it here?" asked the visitor, leaning over the rail.
"Eleven metres at low tide," said the pilot. "Twelve and a half today, because of the wind. You would not want to swim."
"And out there, past the light?"
"Past the light nobody has measured since my grandfather, and he was not a careful man."

Chapter 4. Keeping a workshop dry
Water gets into a building in three ways: from above, from below, and from the air. The first is easy to see and the
second easy to smell; the third is the one that ruins tools. When warm air touches cold iron it leaves a film of water
behind, and a week later the film is rust. There are several remedies:
  1. Keep the iron warm. A lamp of 15 watts inside a closed cupboard is enough.
  2. Keep the air dry. Open the windows when it is colder outside than inside, not the other way round.
  3. Cover the iron with oil or wax, and renew the coat every spring.
None of them works if the roof leaks, so begin with the roof.

#include <stdio.h>

static int count_words(const char *text) {
    int words = 0, inside = 0;
    for (; *text != '\0'; ++text) {
        if (*text == ' ' || *text == '\n' || *text == '\t') { inside = 0; continue; }
        if (!inside) { words += 1; inside = 1; }
    }
    return words;
}

def mean(values):
    """Arithmetic mean; None for an empty list."""
    if not values:
        return None
    return sum(values) / len(values)

station   date         min     max    rain_mm
Aldermoor 2019-03-01   -1.5    6.2    0.0
Aldermoor 2019-03-02    0.4    8.9    3.4
Brackwell 2019-03-01    2.0    9.1   11.8
Brackwell 2019-03-02    1.7   10.3    0.2
total                                15.4

Dear Mrs Okafor, thank you for your letter of 12 June. We have looked into the matter of the two missing parcels and can
tell you the following: the first (no. 4471-B) was delivered to your neighbour, who signed for it; the second was sent
back to us because the street number could not be read. We will send it again on Monday, free of charge. Please accept
our apologies for the trouble. Yours sincerely, R. Lindqvist.

In mathematics a graph is a set of points, called vertices, together with a set of lines that join some of them. If
every vertex can be reached from every other, the graph is connected. A connected graph without loops is a tree, and a
tree with n vertices has exactly n - 1 edges: remove one edge and it falls into two parts, add one and a loop appears.
For n = 10 that makes 9 edges; for n = 1, none at all.

Whether the old bridge was ever safe is a question that historians still argue about. It was built in 1768 of local oak,
repaired in 1802 and again in 1845, and closed to wagons after the flood of 1871. The engineer who inspected it wrote
that "the timbers are sound, but I should not like to stand beneath them". A railway came, then a road, and the river
itself was moved 200 metres to the east; what remains is a row of black posts in a meadow, where cows rub their necks.

Usage: sortlines [-r] [-k FIELD] [--output=FILE] [FILE...]
  -r, --reverse        largest line first
  -k, --key=FIELD      compare by this field; fields are counted from 1
      --output=FILE    write to FILE instead of the standard output
Exit status is 0 on success, 1 if a file cannot be read, and 2 if the options make no sense.

Yes, I know; but listen. When you plant beans too early they sulk, when you plant them too late they hurry, and in both
cases you get leaves instead of beans. So my aunt waited for the day on which the stone by the well was warm to her bare
foot, and on that day, never mind the calendar, we planted. Did it always work? No. Did anyone else have beans in June?
)text";
}

}  // namespace kvant::engine
