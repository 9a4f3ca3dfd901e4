// What a board may hold, by Grafana's own types (npm's @grafana/schema), stricter than they are in
// two places: a panel's options and custom fields are those of its kind, and a target is a query of
// Prometheus or of Postgres as scripts/dashboards writes them. Defaults may be left out everywhere.
import type {
  Dashboard,
  FieldConfig,
  FieldConfigSource,
  Panel,
} from './node_modules/@grafana/schema/dist/types/raw/dashboard/x/dashboard_types.gen';
import type * as Heatmap from './node_modules/@grafana/schema/dist/types/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen';
import type * as Stat from './node_modules/@grafana/schema/dist/types/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type * as StateTimeline from './node_modules/@grafana/schema/dist/types/raw/composable/statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen';
import type * as Table from './node_modules/@grafana/schema/dist/types/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import type * as TimeSeries from './node_modules/@grafana/schema/dist/types/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

// Of an enumeration its values: JSON has no enumerations.
type Written<T> = T extends string
  ? `${T}`
  : T extends Array<infer E>
    ? Array<Written<E>>
    : T extends object
      ? { [K in keyof T]?: Written<T[K]> }
      : T;
type Query = { refId: string; datasource: { type: string; uid: string } };
type Prometheus = Query & {
  expr: string;
  legendFormat: string;
  format: 'time_series' | 'table' | 'heatmap';
  instant: boolean;
  range?: boolean;
  exemplar: boolean;
};
type Postgres = Query & {
  rawSql: string;
  rawQuery: boolean;
  editorMode?: 'code';
  format: 'time_series' | 'table';
};
type Of<Kind extends string, Options, Custom> = Omit<
  Written<Panel>,
  'type' | 'options' | 'fieldConfig' | 'targets'
> & {
  type: Kind;
  options?: Written<Options>;
  targets: Array<Prometheus | Postgres>;
  fieldConfig?: {
    defaults: Omit<Written<FieldConfig>, 'custom'> & { custom?: Written<Custom> };
    overrides: Written<FieldConfigSource['overrides']>;
  };
};
export type Board = Omit<Written<Dashboard>, 'panels'> & {
  uid: string;
  schemaVersion: number;
  panels: Array<
    | Of<'timeseries', TimeSeries.Options, TimeSeries.FieldConfig>
    | Of<'heatmap', Heatmap.Options, Heatmap.FieldConfig>
    | Of<'state-timeline', StateTimeline.Options, StateTimeline.FieldConfig>
    | Of<'stat', Stat.Options, Record<string, never>>
    | Of<'table', Table.Options, Table.FieldConfig>
  >;
};
