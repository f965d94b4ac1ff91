// A library that lies where the loader does not look.
extern "C" __attribute__((visibility("default"))) int far_answer() { return 42; }
