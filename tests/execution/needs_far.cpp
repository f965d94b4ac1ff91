// A module that cannot be loaded without that library.
extern "C" int far_answer();
extern "C" __attribute__((visibility("default"))) int ask_far() { return far_answer(); }
