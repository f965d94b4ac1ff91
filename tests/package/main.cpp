#include "traces/chrome_trace.h"

int main() { return foretrain::AtomicFile::create("/dev/null").ok() ? 0 : 1; }
