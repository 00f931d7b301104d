package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/internal/printable"
)

type statusOptions struct {
	form                 form
	watch, all, replicas bool
}

func statusCommand() *cobra.Command {
	flags := genericclioptions.NewConfigFlags(true)
	o := &statusOptions{}
	cmd := &cobra.Command{
		Use: "status [NAME…]", Short: "Show the APIServices in order, and whether each can be used",
		RunE: func(cmd *cobra.Command, names []string) error {
			printer, err := o.form.printer()
			if err == nil && (o.watch || o.replicas) && printer != nil || o.watch && o.replicas {
				err = errors.New("--watch and --replicas only show a table, and exclude each other")
			} else if o.replicas && len(names) > 0 {
				err = errors.New("--replicas takes no names")
			}
			c, err2 := connect(flags, cmd.OutOrStdout())
			if err := cmp.Or(cli.Usage(err), err2); err != nil {
				return err
			}
			if c.names, o.all = names, o.all || len(names) > 0; o.replicas {
				return c.replicas(cmd.Context())
			}
			s, err := c.status(cmd.Context())
			if err != nil {
				return err
			}
			for _, name := range names {
				if len(s.Those(func(a *answer.APIService) bool { return a.Name == name })) == 0 {
					return fmt.Errorf("there is no APIService %q", name)
				}
			}
			if o.watch {
				return c.watch(cmd.Context(), o)
			}
			if printer != nil {
				return cmp.Or(encode(cmd.OutOrStdout(), printer, "Status", s), sound(s))
			}
			return cmp.Or(c.show(s, o), sound(s))
		},
	}
	cmd.ValidArgsFunction = completion(flags, math.MaxInt)
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "Show what changes until interrupted.")
	cmd.Flags().BoolVar(&o.replicas, "replicas", false, "Ask each replica, on its admin port, and show what differs.")
	cmd.Flags().BoolVarP(&o.all, "all", "a", false, "Show the Local APIServices too.")
	o.form.addFlags(cmd)
	groupFlags(cmd, flags)
	return cmd
}

func sound(s *answer.Status) error {
	if _, ok := s.Served(); !ok {
		return errUnavailable
	}
	return nil
}

func (o *statusOptions) shown(s *answer.Status) []*answer.APIService {
	return s.Those(func(a *answer.APIService) bool { return o.all || a.Kind != "local" })
}

func (c *client) rows(s *answer.Status, shown []*answer.APIService, o *statusOptions) [][]cell {
	head := []string{"NAME", "SERVICE", "AVAILABLE", "REASON", "FOR", "ENDPOINTS", "IN-FLIGHT", "P99", "CERT"}
	if o.form.wide() {
		head = append(head, "RATE", "LONG-RUNNING", "PRIORITY", "TLS-NAME", "MESSAGE")
	}
	rows := [][]cell{cells(head...)}
	for _, a := range shown {
		rows = append(rows, c.row(s.Time, a, o.form.wide()))
	}
	return rows
}

func (c *client) row(now time.Time, a *answer.APIService, wide bool) []cell {
	available, reason, colour := string(a.Verdict.Status), a.Verdict.Reason, bad
	switch {
	case a.Maintenance != "":
		available, reason = "False", "Maintenance"
	case a.Available() && a.Cause != "":
		colour = warn
	case a.Available():
		colour = good
	}
	service, endpoints := a.Service, fmt.Sprintf("%d/%d", a.Healthy(), len(a.Endpoints))
	if a.Kind == "local" {
		service, endpoints = "Local", "-"
	}
	traffic := cmp.Or(a.Traffic, &answer.Traffic{})
	row := []cell{
		{text: a.Name}, {text: service}, {available, colour}, {reason, colour},
		{text: answer.Ago(now, a.Verdict.Since)}, {text: endpoints},
		{text: strconv.FormatInt(a.InFlight, 10)}, {text: answer.Latency(traffic.P99)}, expires(now, a.Expires()),
	}
	if wide {
		priority := fmt.Sprintf("%d/%d", a.GroupPriority, a.VersionPriority)
		running := strconv.FormatInt(a.LongRunning, 10)
		row = append(row, cells(answer.Rate(traffic.Rate), running, priority, a.ServerName, a.Why())...)
	}
	return row
}

func expires(now, t time.Time) cell {
	if t.IsZero() {
		return cell{text: "-"}
	}
	return cell{answer.Left(now, t), map[string]string{"bad": bad, "warn": warn}[answer.Urgency(now, t)]}
}

func (c *client) show(s *answer.Status, o *statusOptions) error {
	var b strings.Builder
	line := func(colour, of string, texts ...string) { // one for each, or none, if there is nothing to say of it
		for _, text := range texts {
			if text != "" {
				fmt.Fprintln(&b, c.palette.paint(colour, printable.Line(of+text)))
			}
		}
	}
	// An older Fairlead has no checks. That those named serve says nothing of the others.
	if text, ok := s.Served(); len(s.Checks) > 0 && (!ok || len(c.names) == 0) {
		line(map[bool]string{true: good, false: bad}[ok], "", text)
	}
	shown := o.shown(s)
	_ = c.palette.table(&b, c.rows(s, shown, o)) // into memory
	if local := len(s.APIServices) - len(shown); local > 0 {
		line(dim, "", strconv.Itoa(local)+" Local APIServices are not shown (--all).")
	}
	if s.Ready != "" {
		line(bad, "This Fairlead is not ready: ", s.Ready+". Others: "+called(os.Args[0])+" status --replicas")
	}
	for _, k := range s.Failing() {
		line(bad, "check ", joined(": ", k.Name, k.Message))
		line(dim, "  ", k.Advice, k.Command)
	}
	for _, k := range s.Checks {
		if k.Status == "unknown" {
			line(dim, "check "+k.Name+" is unknown: ", k.Message)
		}
	}
	for _, a := range s.APIServices {
		line(dim, a.Name+": ", a.Policy())
		line(bad, a.Name+": ", a.Problems...)
		if len(a.Problems) == 0 && a.Cause != "" {
			line(map[bool]string{true: warn, false: bad}[a.Available()], a.Name+": ", a.Cause)
			if a.BackendOf != "" { // explain tells of requests, which another server may answer
				line(dim, "  ", a.Advice)
			}
		}
	}
	for _, r := range s.Rules {
		line(dim, "rule ", r.String())
	}
	line(bad, "", s.Problems...)
	line(dim, "", append(s.Notes, s.Handshakes...)...)
	for _, e := range s.LocalServers {
		if e.Health != "healthy" {
			line(bad, "local apiserver "+e.Address+" is ", joined(": ", e.Health, e.Error))
		}
		line(dim, "local apiserver "+e.Address+" ("+e.Release+") serves what another one lacks: ",
			strings.Join(e.Only, ", "))
	}
	for _, f := range s.Certificates {
		line(bad, f.Use+" ("+f.Source+"): ", f.Err)
		for _, c := range f.Certificates { // not of an old CA beside another
			if all := f.Chain || len(f.Certificates) == 1; all && answer.Urgency(s.Time, c.NotAfter) != "dim" {
				line(warn, f.Use+" ("+f.Source+"): expiry of "+c.Subject+": ", answer.Left(s.Time, c.NotAfter))
			}
		}
	}
	ill := append(s.Unavailable(), s.Those(func(a *answer.APIService) bool {
		return a.Cause != "" || a.Healthy() < len(a.Endpoints)
	})...)
	ill = slices.DeleteFunc(ill, func(a *answer.APIService) bool { return a.BackendOf != "" })
	if len(ill) > 0 { // one shows how
		line(dim, "Cause and advice: ", called(os.Args[0])+" explain "+ill[0].Name)
	}
	_, err := io.WriteString(c.out, b.String())
	return err
}

// watch prints the table and then rows that change, as kubectl get --watch does, until interrupted.
func (c *client) watch(ctx context.Context, o *statusOptions) (err error) {
	defer func() {
		if ctx.Err() != nil {
			err = nil // that is how a watch should end
		}
	}()
	resp, err := c.open(ctx, answer.Below+"/events", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	known := map[string]string{}             // :: name → its row without ages and counters
	table := printers.GetNewTabWriter(c.out) // for all rows: it remembers how wide the columns were
	events := bufio.NewScanner(resp.Body)
	for head := 0; events.Scan(); {
		if !strings.HasPrefix(events.Text(), "data:") {
			continue
		}
		s, err := c.status(ctx)
		if err != nil {
			return err
		}
		gone := maps.Clone(known)
		for _, a := range s.APIServices {
			delete(gone, a.Name)
		}
		var changed []*answer.APIService
		for _, a := range o.shown(s) {
			text := fmt.Sprint(a.Verdict.Status, a.Verdict.Reason, a.StandIn, a.Maintenance, a.Service,
				a.Healthy(), len(a.Endpoints))
			if known[a.Name] != text {
				known[a.Name] = text
				changed = append(changed, a)
			}
		}
		rows := c.rows(s, changed, o)[head:]
		head = 1 // it was printed
		for _, name := range slices.Sorted(maps.Keys(gone)) {
			delete(known, name)
			rows = append(rows, []cell{{text: name}, {text: "-"}, {"Deleted", bad}})
		}
		c.palette.rows(table, rows)
		if err := table.Flush(); err != nil {
			return err
		}
	}
	return fmt.Errorf("reading events: %w", cmp.Or(events.Err(), errors.New("the server has ended them")))
}
