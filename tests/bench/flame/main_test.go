package main

import (
	"strings"
	"testing"
	"time"
)

const traces = `File: fairlead
Type: cpu
Duration: 5s, Total samples = 40ms
-----------+-------------------------------------------------------
      10ms   syscall.write
             example.org/fairlead/proxy.(*link).flush (inline)
             main.main
-----------+-------------------------------------------------------
      30ms   crypto/tls.seal<T>
             main.main
-----------+-------------------------------------------------------
`

func TestParse(t *testing.T) {
	root, err := parse(strings.NewReader(traces))
	if err != nil {
		t.Fatal(err)
	}
	if root.spent != 40*time.Millisecond || len(root.calls) != 1 {
		t.Fatalf("%+v", root)
	}
	main := root.calls[0]
	if main.name != "main.main" || main.spent != 40*time.Millisecond || len(main.calls) != 2 {
		t.Fatalf("%+v", main)
	}
	flush := main.calls[0]
	if flush.name != "example.org/fairlead/proxy.(*link).flush" || flush.spent != 10*time.Millisecond || flush.calls[0].name != "syscall.write" {
		t.Errorf("%+v", flush)
	}
	if _, err := parse(strings.NewReader("Type: cpu\n")); err == nil {
		t.Error("a profile without samples was read")
	}
}

func TestDraw(t *testing.T) {
	root, err := parse(strings.NewReader(traces))
	if err != nil {
		t.Fatal(err)
	}
	svg := draw("a & b", root)
	for _, want := range []string{"a &amp; b", "<title>syscall.write: 25.0 %</title>", "seal&lt;T&gt;: 75.0 %", ">proxy.(*link).flush<"} {
		if !strings.Contains(svg, want) {
			t.Errorf("no %s in\n%s", want, svg)
		}
	}
	root.add([]string{"rare"}, time.Microsecond)
	if strings.Contains(draw("", root), "rare") {
		t.Error("a box too narrow to be seen was drawn")
	}
}
