package tests

import (
	"os"
	"regexp"
	"testing"
)

// The prober of the local apiserver promises what that of extension servers does. Neither package may import the other, so this is what keeps their numbers alike.
func TestProbersKeepOnePace(t *testing.T) {
	local := constants(t, "../proxy/backend/prober.go")
	remote := constants(t, "../health/target.go", "../health/probe.go", "../health/watch.go")
	for ours, theirs := range map[string]string{
		"probeInterval": "defaultInterval", "probeJitter": "jitter", "probeTimeout": "probeTimeout", "probeDial": "dialTimeout",
		"hedgeAfter": "hedgeAfter", "hedgeSuspected": "hedgeSuspicious", "firstRetry": "firstRetry", "lastRetry": "lastRetry",
		"retryFraction": "retryFraction", "alarmGap": "alarmGap", "probeFall": "fall", "lightChecks": "lightChecks",
		"lightPatience": "lightPatience",
	} {
		if local[ours] == "" || local[ours] != remote[theirs] {
			t.Errorf("proxy/backend has %s = %q, health has %s = %q", ours, local[ours], theirs, remote[theirs])
		}
	}
}

// constants are the constants that files declare one a line, or two.
func constants(t *testing.T, files ...string) map[string]string {
	t.Helper()
	one := regexp.MustCompile(`(?m)^\s*(?:const )?(\w+)\s+= ([\d.]+|(?:\d+ \* )?time\.\w+)(?: //.*)?$`)
	two := regexp.MustCompile(`(?m)^\s*(\w+), (\w+) = ([^,\n]+), ([^,\n]+)$`)
	all := map[string]string{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range one.FindAllStringSubmatch(string(text), -1) {
			all[m[1]] = m[2]
		}
		for _, m := range two.FindAllStringSubmatch(string(text), -1) {
			all[m[1]], all[m[2]] = m[3], m[4]
		}
	}
	return all
}
