/* Numbers that follow from a seed, for tests that can be replayed (SplitMix64). */
#include <stdint.h>

static uint64_t seed;

static uint64_t draw(void)
{
	seed += 0x9e3779b97f4a7c15;
	uint64_t z = seed;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}
